"""Parts of PromQL that several rules and panels share. Pure.

Prometheus renames a label of a metric to `exported_NAME` if the target has a label of that name. Every expression here
reads both dialects: where `exported_NAME` exists it is the metric's own label.
"""

from __future__ import annotations


def own(expr: str, *labels: str) -> str:
    """Return an expression whose labels are the metric's own, in both dialects."""
    for label in labels:
        expr = f'label_replace({expr}, "{label}", "$1", "exported_{label}", "(.+)")'
    return expr


def rename(expr: str, **labels: str) -> str:
    """Return an expression with labels copied: `new="old"`."""
    for new, old in labels.items():
        expr = f'label_replace({expr}, "{new}", "$1", "{old}", "(.+)")'
    return expr


def rate(metric: str, window: str = "$__rate_interval") -> str:
    return f"rate({metric}[{window}])"


def quantile(share: float, metric: str, *by: str, window: str = "$__rate_interval") -> str:
    """Return a quantile of a histogram."""
    return f"histogram_quantile({share:g}, sum by ({', '.join(('le', *by))}) (rate({metric}_bucket[{window}])))"


def ratio(part: str, whole: str) -> str:
    """Return a ratio that is absent, not infinite, if the whole is zero."""
    return f"({part}) / (({whole}) > 0)"

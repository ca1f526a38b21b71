"""Recording and alert rules of Prometheus, one module per part of KGWE."""

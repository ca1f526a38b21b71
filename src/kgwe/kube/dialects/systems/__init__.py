"""Systems whose gangs KGWE understands, one module each: the labels, annotations and objects they use.

Built on the other modules of `kube.dialects`; only `kube.dialects.registry` imports it.
"""

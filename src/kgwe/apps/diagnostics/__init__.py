"""`kgwe debug bundle`: logs, metrics, status and versions in one file, without secrets."""

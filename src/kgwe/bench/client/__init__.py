"""`kgwe bench client`: our HTTP client beside httpx2. Imported by `kgwe.cli.bench` only."""

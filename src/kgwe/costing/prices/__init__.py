"""The price book: prices of instance types and GPUs with their validity, discounts, owned hardware, and price files."""

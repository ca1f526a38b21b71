"""Price lists of clouds over HTTP: AWS, Azure and GCP behind the same Protocol, and the cache of what they said."""

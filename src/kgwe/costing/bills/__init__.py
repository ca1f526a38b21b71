"""Bills of clouds: their lines, and how they differ from what the price book says."""

"""The MIG controller: what the cards that MIGStrategies select are to be cut into."""

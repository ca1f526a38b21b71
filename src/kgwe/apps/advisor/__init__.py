"""What the present scheduler's placements cost, beside what KGWE would have done. Changes nothing."""

"""What must not go wrong, each tried: hostile files, damaged caches."""

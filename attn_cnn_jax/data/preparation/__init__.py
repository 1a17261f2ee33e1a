"""Data sets on the disk: reads archives, writes ArrayRecord files, caches arrays."""

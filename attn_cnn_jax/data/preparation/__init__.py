"""Data sets on disk: archives read, ArrayRecord written, arrays cached."""

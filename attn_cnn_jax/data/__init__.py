"""Data sets: as uint8 arrays or streamed from the disk, the order of an epoch, augmentation on the device."""

"""Where pictures come from: data sets as uint8 arrays, and augmentation on the device."""

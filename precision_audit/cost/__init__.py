"""What a plan costs on a device: time and memory, predicted from shapes and the device's row, never measured here.

roofline    seconds of one op and one cast
"""

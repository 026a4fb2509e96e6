"""The pure heart of Atlas: contracts, events, decisions. No I/O, no clock, no environment, no threads."""

"""The vault: the folder tree that people own, read strictly and written without losing what they wrote."""

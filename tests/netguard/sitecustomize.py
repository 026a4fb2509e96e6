"""Loaded by Python at start-up when this folder is on PYTHONPATH: guards the child processes of the tests."""

import netguard

netguard.install()

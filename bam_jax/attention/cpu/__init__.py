"""The backend that runs everywhere, made for CPUs."""

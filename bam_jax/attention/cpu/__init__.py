"""The backend that runs on every platform, designed for CPUs."""

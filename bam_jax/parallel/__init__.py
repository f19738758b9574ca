"""The mesh of devices and what it cuts, and the processes of a job."""

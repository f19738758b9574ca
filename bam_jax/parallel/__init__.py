"""The mesh of devices and how it shards arrays, and the processes of a job."""

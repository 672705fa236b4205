"""What a machine is and what a job on it needs: devices, network, and how fast its ranks meet."""

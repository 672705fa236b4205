"""What every process needs, whatever it does: ranks, threads, precision, the Hub, files."""

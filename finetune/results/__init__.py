"""What a run is worth, computed from its rows and its predictions; it knows nothing of the
training.
"""

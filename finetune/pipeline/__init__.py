"""The steps of a run as functions: they take values, and return a run, a table or a result.

They print nothing, and leave the logging and progress bars of the libraries unchanged. They report
progress to a callback; see :mod:`finetune.pipeline.events`.
"""

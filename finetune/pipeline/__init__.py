"""The path of a run as functions: values in, a run, a table or a result out.

Nothing here prints, and the logging and the progress bars of the libraries are left as they are.
What happens meanwhile is reported to a callback, see :mod:`finetune.pipeline.events`.
"""

"""The rules about options: every refusal that needs values only, with its reason.

A rule is a function that reads :class:`~finetune.rules.options.Options` and yields a message for
each mistake. It reads no data, model or recipe. The modules are by subject, and each ends with the
tuple of its rules. :mod:`finetune.rules.check` runs them, and raises all mistakes at once:

- ``check_options`` when a recipe is made: its options,
- ``check_arguments`` before data is read: the training arguments, and the options beside them,
- ``check_task`` once the labels have decided the task.
"""

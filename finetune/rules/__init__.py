"""The rules about options: every refusal that needs values only, with its reason.

A rule is a function that reads :class:`~finetune.rules.options.OptionValues` and yields a message
for each mistake. It reads no data, model or recipe. The modules are by subject, and each ends with
the tuple of its rules. :mod:`finetune.rules.check` runs them, and raises all mistakes at once:

- ``check_options`` those about the options of a recipe, when it is made,
- ``check_arguments`` those about training arguments, when defaults and options are merged,
- ``check_command`` those about both together, before data is read,
- ``check_task`` those that need the task, once the labels have decided it,
- ``check_prediction`` those about the options of a prediction.
"""

"""What makes training and prediction fast on a CPU: attention, dropout, layers, memory."""

#: Values of ``--cpu_kernels``.
CHOICES = ("auto", "off")

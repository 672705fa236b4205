# Train, evaluate, predict and export, on NVIDIA GPUs or on CPUs.
#
#     docker build -f docker/train.Dockerfile -t finetune .
#     docker run --rm --gpus all --shm-size 4g -v "$PWD/runs:/work/runs" -u "$(id -u)" finetune \
#         sentiment --embedded
#     docker run ... --entrypoint torchrun finetune --nproc_per_node=2 -m finetune sentiment --embedded
#
# The torch of PyPI is built for CUDA and also runs without a GPU. For an image that is several GB
# smaller, add `--build-arg TORCH_INDEX=URL`, with the URL that pytorch.org shows for the CPU.
FROM python:3.11.14-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /build
ARG TORCH_INDEX=""
RUN PIP_INDEX_URL="$TORCH_INDEX" pip install torch==2.13.0
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY finetune finetune
COPY recipes recipes
COPY metrics metrics
RUN pip install -c constraints.txt '.[embedded,check,onnx]'

# any user can write here: caches, and runs if none is mounted
WORKDIR /work
RUN chmod 1777 /work
ENV HOME=/work
USER 10001
ENTRYPOINT ["python", "-m", "finetune"]

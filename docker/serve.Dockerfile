# Serve an export over HTTP with ONNX Runtime, without torch.
#
#     docker build -f docker/serve.Dockerfile -t finetune-serve .
#     docker run --rm -p 8000:8000 -v "$PWD/runs/yelp/export:/model:ro" -e FINETUNE_API_KEY finetune-serve
#
# The model is mounted. To have it in the image, add `COPY runs/yelp/export /model` before USER, and
# `!runs/yelp/export` to .dockerignore.
FROM python:3.11.14-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /build
COPY constraints.txt docker/serve.requirements.txt ./
RUN pip install -c constraints.txt -r serve.requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY finetune finetune
COPY recipes recipes
COPY metrics metrics
# without its dependencies, of which torch is one
RUN pip install --no-deps .

WORKDIR /
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["python", "-m", "finetune", "serve", "/model", "--host", "0.0.0.0"]

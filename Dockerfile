# pe-bench in a container, for a CPU:
#   docker build -t pe-bench .
#   docker run --rm -u "$(id -u)" -v "$PWD:/work" pe-bench train encoding=rope
# For NVIDIA GPUs: docker build --build-arg TORCH_BACKEND=cu128 -t pe-bench . and docker run --gpus all ...
FROM python:3.11-slim
ARG TORCH_BACKEND=cpu
# The attention kernel is compiled on its first use.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir uv
COPY . /opt/pe-bench
RUN uv pip install --system --no-cache --torch-backend "$TORCH_BACKEND" -c /opt/pe-bench/constraints.txt \
    "/opt/pe-bench[hf,joblib]"
RUN useradd bench && install --directory --owner bench /work
USER bench
WORKDIR /work
ENV HOME=/work
ENTRYPOINT ["pe-bench"]

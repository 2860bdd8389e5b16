# What plans, prices and exports:                    docker build -t automap .
# With torch, JAX and all that they profile and run: docker build -t automap --build-arg EXTRAS=all .
#
#     docker run -v "$PWD:/work" automap plan llama3-8b --gpus 32xh100
FROM python:3.12-slim
ARG EXTRAS=plot
COPY . /source
RUN pip install --no-cache-dir "/source[$EXTRAS]" && useradd --create-home automap
USER automap
# Compiles the loops of both searches once for all containers; on another kind of processor they are compiled again.
RUN automap plan gpt2 --gpus 8xh100 > /dev/null && automap infer /source/examples/vgg19_v100.npz --topo C > /dev/null
WORKDIR /work
ENTRYPOINT ["automap"]

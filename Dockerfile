# The program alone: one static binary, without a shell or a package manager.
#
#   docker build --build-arg VERSION=$(git describe --tags --always) -t gpuledger .
#
# The image holds no Postgres: give it DATABASE_URL. (`gpuledger demo` without
# --files-only wants a Postgres of its own; see docker-compose.yml for a demo here.)

# The Go that go.mod asks for; a test keeps them the same.
FROM --platform=$BUILDPLATFORM golang:1.26.7 AS build
WORKDIR /src
COPY . .
ARG VERSION=devel
ARG TARGETOS TARGETARCH
# Modules and compiled packages outlive the layer; only what the program needs is fetched.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.buildVersion=$VERSION" -o /out/gpuledger ./cmd/gpuledger
# A new volume takes its owner from the folder it is mounted on.
RUN mkdir -p /out/data

# Certificates of the public authorities for S3, and time zones for owners.yaml.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/gpuledger /usr/local/bin/gpuledger
COPY --from=build --chown=65532:65532 /out/data /var/lib/gpuledger
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /var/lib/gpuledger
ENTRYPOINT ["/usr/local/bin/gpuledger"]
CMD ["--help"]

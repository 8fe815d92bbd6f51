package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/headgate/headgate/control/agent/storage"
)

const (
	// modelcar is the folder of an image that holds the model, as in KServe's modelcars.
	modelcar = "models/"
	// titleAnnotation names the file of a layer, and unpackAnnotation means that the layer is a tar
	// of a folder (ORAS).
	titleAnnotation  = "org.opencontainers.image.title"
	unpackAnnotation = "io.deis.oras.content.unpack"
	// maxLayers limits the layers of an image. Docker allows 127.
	maxLayers = 1000
)

// image reads an image of a registry: the content of /models in its layers, or the files of an
// artifact that ORAS has pushed.
type image struct {
	src       storage.Source
	reference name.Reference
	keychain  authn.Keychain
	transport *http.Transport
	guard     *guard // on the transport, below the credentials

	mu         sync.Mutex
	authorized *transport.Wrapper // nil until the registry has answered
}

// openImage opens oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]. Its credentials are those of registries;
// without any for its registry, they are those of the agent's file config.json.
func openImage(_ context.Context, src storage.Source, opts Options) (Remote, error) {
	i := &image{src: src}
	var checks []name.Option
	insecure := src.Fields["insecure"] == "true"
	if insecure {
		checks = append(checks, name.Insecure)
	}
	text := src.Bucket
	switch {
	case strings.Contains(src.Revision, ":"):
		text += "@" + src.Revision
	case src.Revision != "":
		text += ":" + src.Revision
	}
	var err error
	if i.reference, err = name.ParseReference(text, checks...); err != nil {
		return nil, failure(src, Invalid, "the URI names no image; write oci://REGISTRY/REPO:TAG or oci://REGISTRY/REPO@DIGEST")
	}
	host := i.reference.Context().RegistryStr()
	auth, err := registryAuth(src.Fields, host)
	if err != nil {
		return nil, failure(src, Invalid, "%s", err)
	}
	switch {
	case auth != nil:
		i.keychain = fixedKeychain{host, authn.FromConfig(*auth)}
	case src.CustomServer: // not with the agent's own credentials
		i.keychain = fixedKeychain{host, authn.Anonymous}
	default:
		i.keychain = authn.DefaultKeychain
	}
	if i.transport, err = newTransport(src, opts); err != nil {
		return nil, err
	}
	i.guard = &guard{next: checked{i.transport}, src: src, insecure: insecure}
	return i, nil
}

func (i *image) Close() error {
	i.transport.CloseIdleConnections()
	return nil
}

func (i *image) List(ctx context.Context) (Listing, error) {
	connected, err := i.connect(ctx)
	if err != nil {
		return Listing{}, err
	}
	puller, err := remote.NewPuller(remote.WithTransport(connected))
	if err != nil {
		return Listing{}, i.broken(ctx, err)
	}
	descriptor, err := puller.Get(ctx, i.reference)
	if err != nil {
		return Listing{}, i.broken(ctx, err)
	}
	if descriptor.MediaType.IsIndex() {
		index, err := v1.ParseIndexManifest(bytes.NewReader(descriptor.Manifest))
		if err != nil {
			return Listing{}, failure(i.src, Corrupt, "the registry's index is no index of images")
		}
		chosen, ok := choose(index.Manifests, v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
		if !ok {
			return Listing{}, failure(i.src, NotFound, "there is no image for linux/%s, but for %s; name one by its digest, or push one for it",
				runtime.GOARCH, platforms(index.Manifests))
		}
		if descriptor, err = puller.Get(ctx, i.reference.Context().Digest(chosen.Digest.String())); err != nil {
			return Listing{}, i.broken(ctx, err)
		}
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(descriptor.Manifest))
	if err != nil || descriptor.MediaType.IsIndex() || descriptor.MediaType.IsSchema1() {
		return Listing{}, failure(i.src, Invalid, "the registry's manifest is no manifest of an image (%s)", mediaType(descriptor.MediaType))
	}
	l, problem := listing(manifest)
	if problem != "" {
		return Listing{}, failure(i.src, Invalid, "%s", problem)
	}
	if len(l.Objects) == 0 {
		return Listing{}, failure(i.src, Empty, "the image has no layer with files; put the model into /%s of an image", modelcar)
	}
	if i.src.Schema != "" {
		return Listing{}, failure(i.src, Invalid, "images have no schema file beside the model; remove schemaPath")
	}
	return l, nil
}

// choose returns the image of an index for a platform, or the only image that there is.
// Attestations, which tools add with the platform unknown, do not count.
func choose(all []v1.Descriptor, platform v1.Platform) (v1.Descriptor, bool) {
	images := slices.DeleteFunc(slices.Clone(all), func(d v1.Descriptor) bool {
		return d.Platform != nil && d.Platform.OS == "unknown" || !d.MediaType.IsImage()
	})
	for _, d := range images {
		if d.Platform != nil && d.Platform.OS == platform.OS && d.Platform.Architecture == platform.Architecture {
			return d, true
		}
	}
	if len(images) == 1 { // models are data, which suit every platform
		return images[0], true
	}
	return v1.Descriptor{}, false
}

// platforms lists the platforms of an index, for messages.
func platforms(all []v1.Descriptor) string {
	var names []string
	for _, d := range all {
		if d.Platform != nil && d.Platform.OS != "unknown" && len(names) < 10 {
			names = append(names, printable(d.Platform.String()))
		}
	}
	if names == nil {
		return "no platform"
	}
	return strings.Join(names, ", ")
}

// listing returns the objects of a manifest, and what is wrong with it.
func listing(manifest *v1.Manifest) (Listing, string) {
	if len(manifest.Layers) > maxLayers {
		return Listing{}, fmt.Sprintf("the image has more than %d layers; rebuild it", maxLayers)
	}
	var l Listing
	for n, d := range manifest.Layers {
		if d.Digest.Algorithm != "sha256" {
			return Listing{}, "a layer's digest is not of sha256; push the image again"
		}
		digest := d.Digest.String()
		o := Object{Name: fmt.Sprintf("layer-%03d-%s", n, d.Digest.Hex), Key: digest, Size: d.Size, Version: digest, Digest: digest}
		compression, tar := archiveType(d.MediaType)
		switch title := d.Annotations[titleAnnotation]; {
		case manifest.Config.MediaType.IsConfig() && tar:
			o.Archive = &Archive{Format: "tar", Compression: compression, Prefix: modelcar, Layer: true}
		case manifest.Config.MediaType.IsConfig():
			return Listing{}, "a layer has the media type " + mediaType(d.MediaType) + ", which is not supported; compress it by gzip or zstd"
		case title == "":
			continue // not a file of the model, such as a model card that some tools add
		case d.Annotations[unpackAnnotation] == "true" && tar:
			o.Archive = &Archive{Format: "tar", Compression: compression}
		default:
			o.Name = title
		}
		l.Objects = append(l.Objects, o)
	}
	return l, ""
}

// archiveType returns the compression of a media type, and whether it is a tar.
func archiveType(m types.MediaType) (string, bool) {
	switch m {
	case types.DockerLayer, types.DockerForeignLayer, types.OCILayer, types.OCIRestrictedLayer:
		return "gzip", true
	case types.OCILayerZStd, "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd":
		return "zstd", true
	case types.OCIUncompressedLayer, types.OCIUncompressedRestrictedLayer, types.DockerUncompressedLayer:
		return "", true
	}
	return "", false
}

func (i *image) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if _, err := v1.NewHash(o.Digest); err != nil {
		return nil, failure(i.src, Invalid, "a layer has no digest; push the image again")
	}
	if length == 0 {
		return http.NoBody, nil
	}
	connected, err := i.connect(ctx)
	if err != nil {
		return nil, err
	}
	repository := i.reference.Context()
	target := repository.Scheme() + "://" + repository.RegistryStr() + "/v2/" + repository.RepositoryStr() + "/blobs/" + o.Digest
	requesting, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(requesting, http.MethodGet, target, nil)
	if err != nil {
		cancel(nil)
		return nil, failure(i.src, Invalid, "the registry's name is wrong; correct the source")
	}
	part := setRange(request.Header, o, offset, length)
	r, err := (&http.Client{Transport: connected}).Do(request)
	if err != nil {
		cancel(nil)
		return nil, i.broken(ctx, err)
	}
	switch {
	case r.StatusCode != http.StatusOK && r.StatusCode != http.StatusPartialContent:
		err = i.refused(r.StatusCode, r.Request.URL.Host)
	case part:
		err = checkRange(i.src, r, offset)
	}
	if err != nil {
		r.Body.Close()
		cancel(nil)
		return nil, err
	}
	return body(ctx, cancel, i.src, r.Body, expected(o, offset, length)), nil
}

// connect returns a transport with the registry's authorization. It asks the registry how to
// authenticate once; if that fails, the next call asks again.
func (i *image) connect(ctx context.Context) (*transport.Wrapper, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.authorized != nil {
		return i.authorized, nil
	}
	repository := i.reference.Context()
	auth, err := authn.Resolve(ctx, i.keychain, repository)
	if err != nil {
		return nil, failure(i.src, Invalid, "the file config.json with the credentials of registries cannot be read; check it")
	}
	scopes := []string{repository.Scope(transport.PullScope)}
	connected, err := transport.NewWithContext(ctx, repository.Registry, auth, i.guard, scopes)
	if err != nil {
		return nil, i.broken(ctx, err)
	}
	w, ok := connected.(*transport.Wrapper)
	if !ok {
		return nil, failure(i.src, Invalid, "the registry's transport is of an unknown type")
	}
	i.authorized = w
	return w, nil
}

// broken returns the error of a call of the registry's client. It contains no text of the registry,
// which may repeat the credentials of the request.
func (i *image) broken(ctx context.Context, err error) error {
	var answer *transport.Error
	var link *url.Error
	switch {
	case errors.As(err, &answer):
		host := ""
		if answer.Request != nil {
			host = answer.Request.URL.Host
		}
		return i.refused(answer.StatusCode, host)
	case ctx.Err() != nil, errors.As(err, &link), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return ofTransport(ctx, i.src, err)
	}
	return failure(i.src, Busy, "the registry's answer cannot be used; check that it is a registry, and the digest if the URI has one")
}

// refused returns why a registry refused a request. Registries answer 401 for repositories that do
// not exist, too.
func (i *image) refused(status int, host string) error {
	registry := i.reference.Context().RegistryStr()
	pause := int(i.guard.pause.Load())
	switch other := host != "" && host != registry; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden && !other:
		return failure(i.src, Denied, "the registry refuses access (%d); check the credentials for %s, and the repository's name", status, registry)
	case status == http.StatusNotFound && !other:
		return failure(i.src, NotFound, "the registry has no such image; correct the repository, and its tag or digest")
	case status == http.StatusRequestedRangeNotSatisfiable:
		return failure(i.src, Corrupt, "a layer is shorter than its size in the image's manifest; push the image again")
	case other && status < 500: // a link to blobs has expired; the next attempt gets a new one
		e := failure(i.src, Busy, "the registry's server of blobs refuses the request (%d); the load is tried again", status)
		e.RetryAfter = pause
		return e
	}
	return ofStatus(i.src, status, "", pause)
}

package fetch

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"golang.org/x/oauth2/jwt"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	gcs "google.golang.org/api/storage/v1"

	"github.com/headgate/headgate/control/agent/storage"
)

const (
	gcsScope = gcs.DevstorageReadOnlyScope
	// gcsTokens is where a service account without token_uri gets its tokens.
	gcsTokens = "https://oauth2.googleapis.com/token"
)

// gcsBucket is a path in a bucket of Google Cloud Storage. It uses the JSON API.
type gcsBucket struct {
	src       storage.Source
	objects   *gcs.ObjectsService
	transport *http.Transport
}

func openGCS(ctx context.Context, src storage.Source, opts Options) (Remote, error) {
	endpoint := src.Fields["endpoint_url"]
	if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, failure(src, Invalid, "endpoint_url is no URL with http:// or https://; correct %s", credentials(src))
	}
	transport, err := newTransport(src, opts)
	if err != nil {
		return nil, err
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	plain := &http.Client{Transport: stored{checked{transport}}, CheckRedirect: refuse}
	tokens, err := googleIdentity(ctx, src, opts, plain)
	if err != nil {
		return nil, err
	}
	client := plain
	if tokens != nil {
		client = &http.Client{Transport: &oauth2.Transport{Base: plain.Transport, Source: tokens}, CheckRedirect: refuse}
	}
	service, err := gcs.NewService(ctx, option.WithHTTPClient(client))
	if err != nil {
		return nil, failure(src, Invalid, "the client of Google Cloud Storage cannot be set up; correct %s", credentials(src))
	}
	if endpoint != "" {
		service.BasePath = strings.TrimRight(endpoint, "/") + "/storage/v1/"
	}
	return &gcsBucket{src: src, objects: service.Objects, transport: transport}, nil
}

// googleIdentity returns the source of tokens: that of the source's service account, that of the
// pod, or none.
func googleIdentity(ctx context.Context, src storage.Source, opts Options, client *http.Client) (oauth2.TokenSource, error) {
	switch key, email := src.Fields["private_key"], src.Fields["client_email"]; {
	case anonymous(src):
		return nil, nil
	case key != "" && email != "":
		account := jwt.Config{Email: email, PrivateKey: []byte(key), TokenURL: src.Fields["token_uri"], Scopes: []string{gcsScope}}
		if account.TokenURL == "" {
			account.TokenURL = gcsTokens
		}
		// Tokens outlive ctx, which is that of the call.
		return account.TokenSource(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, client)), nil
	case key != "":
		return nil, failure(src, Denied, "%s has a private_key and no client_email; set both", credentials(src))
	case src.CustomServer:
		return nil, nil
	}
	// Google's own client reaches the metadata service, which Options.Dial refuses.
	search, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	found, err := google.FindDefaultCredentials(search, gcsScope)
	if err == nil {
		// The token source keeps its context.
		found, err = google.FindDefaultCredentials(context.WithoutCancel(ctx), gcsScope)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		opts.Log.Info("no Google identity found in this pod; access is anonymous", "uri", src.URI)
		return nil, nil
	}
	return found.TokenSource, nil
}

// stored is a transport that reads objects as they are stored: Google decompresses those with the
// content coding gzip unless the client accepts it.
type stored struct{ http.RoundTripper }

func (s stored) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("alt") == "media" {
		r = r.Clone(r.Context())
		r.Header.Set("Accept-Encoding", "gzip")
	}
	return s.RoundTripper.RoundTrip(r)
}

func (b *gcsBucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// fault returns the Error for an error of the client.
func (b *gcsBucket) fault(ctx context.Context, err error) error {
	if token, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		if token.Response != nil && (token.Response.StatusCode >= 500 || token.Response.StatusCode == http.StatusTooManyRequests) {
			return ofStatus(b.src, token.Response.StatusCode, "", seconds(token.Response.Header.Get("Retry-After"), time.Now()))
		}
		return failure(b.src, Denied, "Google gives no token for %s; correct its private_key, client_email or token_uri",
			credentials(b.src))
	}
	var answer *googleapi.Error
	if !errors.As(err, &answer) {
		if strings.Contains(err.Error(), "private key") { // of the JWT library, which has no type for it
			return failure(b.src, Denied, "private_key in %s is no PEM key; correct it", credentials(b.src))
		}
		return ofTransport(ctx, b.src, err)
	}
	code := ""
	if len(answer.Errors) > 0 {
		code = answer.Errors[0].Reason
	}
	return ofStatus(b.src, answer.Code, code, seconds(answer.Header.Get("Retry-After"), time.Now()))
}

func (b *gcsBucket) List(ctx context.Context) (Listing, error) {
	return objectStore{src: b.src, stat: b.stat, below: b.below}.list(ctx)
}

func (b *gcsBucket) stat(ctx context.Context, key string) (Object, error) {
	found, err := b.objects.Get(b.src.Bucket, key).Fields("name", "size", "generation", "crc32c").Context(ctx).Do()
	if err != nil {
		return Object{}, b.fault(ctx, err)
	}
	return ofGCS(found), nil
}

func ofGCS(found *gcs.Object) Object {
	o := Object{Name: base(found.Name), Key: found.Name, Size: int64(found.Size), Version: strconv.FormatInt(found.Generation, 10)}
	if sum, err := base64.StdEncoding.DecodeString(found.Crc32c); err == nil && len(sum) == 4 {
		o.Digest = "crc32c:" + hex.EncodeToString(sum)
	}
	return o
}

func (b *gcsBucket) below(ctx context.Context, prefix string) ([]Object, error) {
	var objects []Object
	err := b.objects.List(b.src.Bucket).Prefix(prefix).Fields("nextPageToken", "items(name,size,generation,crc32c)").
		Pages(ctx, func(page *gcs.Objects) error {
			for _, found := range page.Items {
				if !strings.HasSuffix(found.Name, "/") {
					objects = append(objects, ofGCS(found))
				}
			}
			if len(objects) > maxObjects {
				return tooMany(b.src)
			}
			return nil
		})
	if err == nil {
		return objects, nil
	}
	var fault *Error
	if err = b.fault(ctx, err); errors.As(err, &fault) && fault.Reason == NotFound {
		err = failure(b.src, NotFound, "there is no bucket %q (404); correct the source", b.src.Bucket)
	}
	return nil, err
}

func (b *gcsBucket) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if length == 0 {
		return http.NoBody, nil
	}
	request, cancel := context.WithCancelCause(ctx)
	call := b.objects.Get(b.src.Bucket, o.Key).Context(request)
	if generation, err := strconv.ParseInt(o.Version, 10, 64); err == nil {
		call.IfGenerationMatch(generation)
	}
	span := rangeHeader(offset, length)
	if span != "" {
		call.Header().Set("Range", span)
	}
	answer, err := call.Download()
	if err != nil {
		cancel(nil)
		err = b.fault(ctx, err)
		var fault *Error
		if errors.As(err, &fault) && fault.Reason == NotFound {
			err = failure(b.src, Changed, "the object was deleted after it was listed; the load starts anew")
		}
		return nil, err
	}
	if err := checkAnswer(b.src, o, offset, span, answer.Header.Get("X-Goog-Generation"), answer.Header.Get("Content-Range"),
		&answer.ContentLength); err != nil {
		cancel(nil)
		answer.Body.Close()
		return nil, err
	}
	return body(ctx, cancel, b.src, answer.Body, expected(o, offset, length)), nil
}

package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/headgate/headgate/control/agent/storage"
)

const (
	// identityTimeout limits the search for the pod's own cloud identity.
	identityTimeout = 10 * time.Second
	// maxObjects limits how many files a model may have, and so the memory of a listing.
	maxObjects = 100_000
	// defaultRegion is the region of requests without a configured region. Servers other than
	// Amazon's accept it, and Amazon's answer with the right one.
	defaultRegion = "us-east-1"
)

// s3Bucket is a path in a bucket of S3.
type s3Bucket struct {
	src       storage.Source
	client    *s3.Client
	transport *http.Transport
	region    atomic.Pointer[string]
	moves     bool // Amazon may answer that the bucket is in another region
}

func openS3(ctx context.Context, src storage.Source, opts Options) (Remote, error) {
	endpoint := src.Fields["endpoint_url"]
	if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, failure(src, Invalid, "endpoint_url is no URL with http:// or https://; correct %s", credentials(src))
	}
	transport, err := newTransport(src, opts)
	if err != nil {
		return nil, err
	}
	identity, region, err := awsIdentity(ctx, src, opts)
	if err != nil {
		return nil, err
	}
	b := &s3Bucket{src: src, transport: transport, moves: endpoint == ""}
	b.region.Store(&region)
	b.client = s3.New(s3.Options{
		Credentials: identity, Region: region, Retryer: aws.NopRetryer{},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		HTTPClient: &http.Client{
			Transport:     checked{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, func(o *s3.Options) {
		if endpoint != "" {
			o.BaseEndpoint = &endpoint
			o.UsePathStyle = src.Fields["addressing_style"] != "virtual"
		}
	})
	return b, nil
}

// awsIdentity returns the credentials of a source and its region: its own ones, those of the pod,
// or none.
func awsIdentity(ctx context.Context, src storage.Source, opts Options) (aws.CredentialsProvider, string, error) {
	region := src.Fields["region"]
	if region == "" {
		region = defaultRegion
	}
	id, secret := src.Fields["access_key_id"], src.Fields["secret_access_key"]
	switch {
	case anonymous(src):
		return aws.AnonymousCredentials{}, region, nil
	case id != "" && secret != "":
		return awscredentials.NewStaticCredentialsProvider(id, secret, src.Fields["session_token"]), region, nil
	case src.HasSecrets():
		return nil, "", failure(src, Denied, "%s has only one of access_key_id and secret_access_key; set both", credentials(src))
	case src.CustomServer:
		return aws.AnonymousCredentials{}, region, nil
	}
	// The SDK's own client reaches the metadata service, which Options.Dial refuses.
	search, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	found, err := config.LoadDefaultConfig(search)
	if err == nil {
		if found.Region != "" && src.Fields["region"] == "" {
			region = found.Region
		}
		if _, err = found.Credentials.Retrieve(search); err == nil {
			return found.Credentials, region, nil
		}
	}
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	opts.Log.Info("no AWS identity found in this pod; access is anonymous", "uri", src.URI)
	return aws.AnonymousCredentials{}, region, nil
}

// anonymous reports whether a source is configured for access without an identity.
func anonymous(src storage.Source) bool { return strings.EqualFold(src.Fields["anonymous"], "true") }

func (b *s3Bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

// call calls the server, and once more if Amazon answers with another region.
func (b *s3Bucket) call(ctx context.Context, f func(where func(*s3.Options)) error) error {
	region := *b.region.Load()
	err := f(func(o *s3.Options) { o.Region = region })
	if err == nil {
		return nil
	}
	var answer *smithyhttp.ResponseError
	if b.moves && errors.As(err, &answer) && answer.Response != nil {
		if other := answer.Response.Header.Get("X-Amz-Bucket-Region"); other != "" && other != region {
			b.region.Store(&other)
			err = f(func(o *s3.Options) { o.Region = other })
		}
	}
	if err != nil {
		return b.fault(ctx, err)
	}
	return nil
}

// fault returns the Error for an error of the SDK.
func (b *s3Bucket) fault(ctx context.Context, err error) error {
	code := ""
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code = api.ErrorCode()
	}
	var answer *smithyhttp.ResponseError
	if !errors.As(err, &answer) || answer.HTTPStatusCode() == 0 {
		return ofTransport(ctx, b.src, err)
	}
	status := answer.HTTPStatusCode()
	switch code {
	case "NoSuchBucket":
		return failure(b.src, NotFound, "there is no bucket %q (%d %s); correct the source", b.src.Bucket, status, code)
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed", "XAdminUserNotFound":
		status = http.StatusForbidden // Amazon answers with 400, and versitygw with 404
	case "RequestTimeout", "SlowDown":
		status = http.StatusServiceUnavailable
	}
	return ofStatus(b.src, status, code, seconds(answer.Response.Header.Get("Retry-After"), time.Now()))
}

// List lists the object at the path, or the folder. A HEAD that fails has no error text, so a
// listing follows, and List returns the error of the listing.
func (b *s3Bucket) List(ctx context.Context) (Listing, error) {
	return objectStore{src: b.src, stat: b.head, below: b.below, marks: true}.list(ctx)
}

func (b *s3Bucket) head(ctx context.Context, key string) (Object, error) {
	var answer *s3.HeadObjectOutput
	err := b.call(ctx, func(where func(*s3.Options)) (err error) {
		answer, err = b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.src.Bucket, Key: &key}, where)
		return err
	})
	if err != nil {
		return Object{}, err
	}
	o := Object{Name: base(key), Key: key, Size: -1, Version: strongTag(aws.ToString(answer.ETag))}
	if answer.ContentLength != nil {
		o.Size = *answer.ContentLength
	}
	return o, nil
}

// below lists the objects below a prefix, without those that mark folders.
func (b *s3Bucket) below(ctx context.Context, prefix string) ([]Object, error) {
	var objects []Object
	in := &s3.ListObjectsV2Input{Bucket: &b.src.Bucket, Prefix: &prefix}
	for {
		var page *s3.ListObjectsV2Output
		err := b.call(ctx, func(where func(*s3.Options)) (err error) {
			page, err = b.client.ListObjectsV2(ctx, in, where)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, found := range page.Contents {
			key := aws.ToString(found.Key)
			if strings.HasSuffix(key, "/") {
				continue
			}
			objects = append(objects, Object{Key: key, Size: aws.ToInt64(found.Size), Version: strongTag(aws.ToString(found.ETag))})
		}
		if len(objects) > maxObjects {
			return nil, tooMany(b.src)
		}
		if !aws.ToBool(page.IsTruncated) || page.NextContinuationToken == nil {
			return objects, nil
		}
		in.ContinuationToken = page.NextContinuationToken
	}
}

func (b *s3Bucket) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if length == 0 {
		return http.NoBody, nil
	}
	in := &s3.GetObjectInput{Bucket: &b.src.Bucket, Key: &o.Key}
	span := rangeHeader(offset, length)
	if span != "" {
		in.Range = &span
	}
	if o.Version != "" {
		in.IfMatch = &o.Version
	}
	request, cancel := context.WithCancelCause(ctx)
	var answer *s3.GetObjectOutput
	err := b.call(ctx, func(where func(*s3.Options)) (err error) {
		answer, err = b.client.GetObject(request, in, where)
		return err
	})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	err = checkAnswer(b.src, o, offset, span, strongTag(aws.ToString(answer.ETag)), aws.ToString(answer.ContentRange),
		answer.ContentLength)
	if err != nil {
		cancel(nil)
		answer.Body.Close()
		return nil, err
	}
	return body(ctx, cancel, b.src, answer.Body, expected(o, offset, length)), nil
}

// checkAnswer returns an error if an answer has another version, size or part than requested.
// span is the requested range, or empty.
func checkAnswer(src storage.Source, o Object, offset int64, span, version, contentRangeHeader string, length *int64) error {
	first, total, ranged := contentRange(contentRangeHeader)
	switch {
	case o.Version != "" && version != "" && version != o.Version,
		ranged && o.Size >= 0 && total >= 0 && total != o.Size,
		span == "" && o.Size >= 0 && length != nil && *length >= 0 && *length != o.Size:
		return failure(src, Changed, "the object has changed since it was listed; the load starts anew")
	case span != "" && !ranged:
		return failure(src, NoRange, "the server serves no part of an object; the load reads it whole")
	case span != "" && first != offset:
		return failure(src, Invalid, "the server answers with another part than requested; use another server")
	}
	return nil
}

// strongTag returns an ETag in quotes, or nothing for a weak one.
func strongTag(tag string) string {
	switch {
	case tag == "" || strings.HasPrefix(tag, "W/"):
		return ""
	case strings.HasPrefix(tag, `"`):
		return tag
	}
	return `"` + tag + `"`
}

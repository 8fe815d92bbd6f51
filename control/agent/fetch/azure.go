package fetch

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/headgate/headgate/control/agent/storage"
)

// azureScope is the scope of tokens for storage.
const azureScope = "https://storage.azure.com/.default"

// azureContainer is a path in a container of Azure Blob Storage.
type azureContainer struct {
	src       storage.Source
	client    *container.Client
	transport *http.Transport
}

func openAzure(ctx context.Context, src storage.Source, opts Options) (Remote, error) {
	transport, err := newTransport(src, opts)
	if err != nil {
		return nil, err
	}
	options := azcore.ClientOptions{
		Transport: &http.Client{
			Transport:     checked{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		Retry: policy.RetryOptions{MaxRetries: -1},
		Cloud: azureCloud(src.Fields["account_url"]),
	}
	a := &azureContainer{src: src, transport: transport}
	if a.client, err = newContainer(ctx, src, opts, options); err != nil {
		return nil, err
	}
	return a, nil
}

// azureCloud returns the cloud of an account.
func azureCloud(account string) cloud.Configuration {
	switch u, _ := url.Parse(account); {
	case u == nil:
	case strings.HasSuffix(u.Host, ".usgovcloudapi.net"):
		return cloud.AzureGovernment
	case strings.HasSuffix(u.Host, ".chinacloudapi.cn"):
		return cloud.AzureChina
	}
	return cloud.AzurePublic
}

// newContainer returns the client, with the credentials of the source, those of the pod, or none.
func newContainer(ctx context.Context, src storage.Source, opts Options, options azcore.ClientOptions) (*container.Client, error) {
	at, own := src.Fields["account_url"]+"/"+src.Bucket, &container.ClientOptions{ClientOptions: options}
	wrong := func(what string) error { return failure(src, Invalid, "%s; correct %s", what, credentials(src)) }
	checked := func(c *container.Client, err error) (*container.Client, error) {
		if err != nil { // its text is not shown: it may have parts of credentials
			return nil, wrong("the credentials for Azure are not valid")
		}
		return c, nil
	}
	id, secret, tenant := src.Fields["client_id"], src.Fields["client_secret"], src.Fields["tenant_id"]
	switch {
	case anonymous(src):
		return checked(container.NewClientWithNoCredential(at, own))
	case src.Fields["sas"] != "":
		return checked(container.NewClientWithNoCredential(at+"?"+src.Fields["sas"], own))
	case src.Fields["connection_string"] != "":
		return checked(container.NewClientFromConnectionString(src.Fields["connection_string"], src.Bucket, own))
	case secret != "":
		if id == "" || tenant == "" {
			return nil, wrong("client_secret needs client_id and tenant_id")
		}
		tokens, err := azidentity.NewClientSecretCredential(tenant, id, secret,
			&azidentity.ClientSecretCredentialOptions{ClientOptions: options})
		if err != nil {
			return nil, wrong("client_id, client_secret or tenant_id is not valid")
		}
		return checked(container.NewClient(at, tokens, own))
	case src.CustomServer:
		return checked(container.NewClientWithNoCredential(at, own))
	}
	// The SDK's own transport reaches the metadata service, which Options.Dial refuses.
	tokens, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
		ClientOptions: azcore.ClientOptions{Cloud: options.Cloud},
	})
	if err == nil {
		search, cancel := context.WithTimeout(ctx, identityTimeout)
		defer cancel()
		_, err = tokens.GetToken(search, policy.TokenRequestOptions{Scopes: []string{azureScope}})
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		opts.Log.Info("no Azure identity found in this pod; access is anonymous", "uri", src.URI)
		return checked(container.NewClientWithNoCredential(at, own))
	}
	return checked(container.NewClient(at, tokens, own))
}

func (a *azureContainer) Close() error {
	a.transport.CloseIdleConnections()
	return nil
}

// fault returns the Error for an error of the SDK.
func (a *azureContainer) fault(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		return failure(a.src, Denied, "Azure gives no token for %s; correct client_id, client_secret or tenant_id", credentials(a.src))
	}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return ofTransport(ctx, a.src, err)
	}
	if answer.ErrorCode == "ContainerNotFound" {
		return failure(a.src, NotFound, "there is no container %q (%d %s); correct the source",
			a.src.Bucket, answer.StatusCode, answer.ErrorCode)
	}
	pause := 0
	if answer.RawResponse != nil {
		pause = seconds(answer.RawResponse.Header.Get("Retry-After"), time.Now())
	}
	return ofStatus(a.src, answer.StatusCode, answer.ErrorCode, pause)
}

func (a *azureContainer) List(ctx context.Context) (Listing, error) {
	return objectStore{src: a.src, stat: a.stat, below: a.below, marks: true}.list(ctx)
}

func (a *azureContainer) stat(ctx context.Context, key string) (Object, error) {
	found, err := a.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return Object{}, a.fault(ctx, err)
	}
	return ofAzure(key, found.ContentLength, found.ETag, found.ContentMD5), nil
}

func ofAzure(key string, size *int64, tag *azcore.ETag, sum []byte) Object {
	o := Object{Name: base(key), Key: key, Size: -1}
	if size != nil {
		o.Size = *size
	}
	if tag != nil {
		o.Version = strongTag(string(*tag))
	}
	if len(sum) == 16 {
		o.Digest = "md5:" + hex.EncodeToString(sum)
	}
	return o
}

// below lists the blobs below a prefix, without those that mark folders in an account with a
// hierarchical namespace.
func (a *azureContainer) below(ctx context.Context, prefix string) ([]Object, error) {
	var objects []Object
	options := &container.ListBlobsFlatOptions{Include: container.ListBlobsInclude{Metadata: true}}
	if prefix != "" {
		options.Prefix = &prefix
	}
	for pager := a.client.NewListBlobsFlatPager(options); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, a.fault(ctx, err)
		}
		if page.Segment == nil {
			continue
		}
		for _, found := range page.Segment.BlobItems {
			if found.Name == nil || found.Properties == nil || strings.HasSuffix(*found.Name, "/") || marksFolder(found.Metadata) {
				continue
			}
			p := found.Properties
			objects = append(objects, ofAzure(*found.Name, p.ContentLength, p.ETag, p.ContentMD5))
		}
		if len(objects) > maxObjects {
			return nil, tooMany(a.src)
		}
	}
	return objects, nil
}

func marksFolder(metadata map[string]*string) bool {
	for name, value := range metadata {
		if strings.EqualFold(name, "hdi_isfolder") && value != nil && strings.EqualFold(*value, "true") {
			return true
		}
	}
	return false
}

func (a *azureContainer) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if length == 0 || o.Size == 0 {
		return http.NoBody, nil
	}
	options := &blob.DownloadStreamOptions{}
	span := rangeHeader(offset, length)
	if span != "" {
		options.Range = blob.HTTPRange{Offset: offset, Count: max(0, length)}
	}
	if tag := azcore.ETag(o.Version); tag != "" {
		options.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &tag}}
	}
	request, cancel := context.WithCancelCause(ctx)
	answer, err := a.client.NewBlobClient(o.Key).DownloadStream(request, options)
	if err != nil {
		cancel(nil)
		return nil, a.fault(ctx, err)
	}
	version, part := "", ""
	if answer.ETag != nil {
		version = strongTag(string(*answer.ETag))
	}
	if answer.ContentRange != nil {
		part = *answer.ContentRange
	}
	if err := checkAnswer(a.src, o, offset, span, version, part, answer.ContentLength); err != nil {
		cancel(nil)
		answer.Body.Close()
		return nil, err
	}
	return body(ctx, cancel, a.src, answer.Body, expected(o, offset, length)), nil
}

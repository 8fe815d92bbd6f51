package fetch

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/control/agent/storage"
)

// gcsEntries returns entries for a server of Google's protocol. Its service account has a new key.
func gcsEntries(t *testing.T, url string) storage.Entries {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return storage.Entries{
		"account":     {"type": "gs", "endpoint_url": url, "private_key": string(text), "client_email": "a@b", "token_uri": url + "/token"},
		"default_gcs": {"type": "gcs", "endpoint_url": url, "anonymous": "true"},
		"noKey":       {"type": "gs", "endpoint_url": url, "private_key": "SECRET", "client_email": "a@b", "token_uri": url + "/token"},
		"noMail":      {"type": "gs", "endpoint_url": url, "private_key": "SECRET"},
	}
}

// TestGCSProtocol has a server that knows one object. TestGCS has one that knows more.
func TestGCSProtocol(t *testing.T) {
	status, tokens := 0, 200
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tokens)
			fmt.Fprint(w, `{"access_token":"token-SECRET","token_type":"Bearer","expires_in":3600,"error":"invalid_grant SECRET"}`)
		case status != 0:
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"SECRET","errors":[{"reason":"backendError","message":"SECRET"}]}}`)
		case r.Header.Get("Authorization") != "Bearer token-SECRET":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Query().Get("alt") == "media":
			if r.URL.Query().Get("ifGenerationMatch") != "7" {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			w.Header().Set("X-Goog-Generation", "7")
			serveFile(w, r, "", content)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"name": "m", "size": "16", "generation": "7"})
		}
	})
	entries := gcsEntries(t, s.URL)
	remote := open(t, resolve(t, "gs://models/m", `{"storage_key":"account"}`, entries), Options{})
	o := list(t, remote).Objects[0]
	if got, err := read(remote, o, 4, 4); err != nil || got != "4567" {
		t.Errorf("a part is %q, %v", got, err)
	}
	o.Version = "8"
	_, err := read(remote, o, 4, 4)
	fails(t, err, Changed, "412")
	for code, want := range map[int]Reason{401: Denied, 403: Denied, 404: NotFound, 429: Busy, 503: Busy, 400: Invalid} {
		status = code
		_, err := remote.List(t.Context())
		if pause := fails(t, err, want, strconv.Itoa(code)); want == Busy && pause != 5 {
			t.Errorf("%d: the pause is %d", code, pause)
		}
	}
	status = 0
	for _, c := range []struct {
		entry  string
		tokens int
		reason Reason
		words  string
	}{
		{"account", 401, Denied, "Google gives no token"},
		{"account", 503, Busy, "503"},
		{"noKey", 200, Denied, "is no PEM key"},
		{"noMail", 200, Denied, "no client_email"},
		{"", 200, Denied, "401"},
	} {
		tokens = c.tokens
		key := ""
		if c.entry != "" {
			key = fmt.Sprintf(`{"storage_key":%q}`, c.entry)
		}
		remote, err := Open(t.Context(), resolve(t, "gs://models/m", key, entries), Options{})
		if err == nil {
			_, err = remote.List(t.Context())
		}
		fails(t, err, c.reason, c.words)
	}
}

// azureEntries returns entries for a server of Azure's protocol.
func azureEntries(url, key string) storage.Entries {
	at := "DefaultEndpointsProtocol=http;BlobEndpoint=" + url + "/acme;AccountName=acme;AccountKey="
	return storage.Entries{
		"store":     {"type": "azure", "connection_string": at + key, "container": "models"},
		"wrong":     {"type": "azure", "connection_string": at + "U0VDUkVU", "container": "models"},
		"malformed": {"type": "azure", "account_name": "acme", "connection_string": "AccountKey=SECRET", "container": "models"},
		"half":      {"type": "azure", "account_name": "acme", "client_secret": "SECRET", "container": "models"},
	}
}

// TestAzureProtocol has a server that knows one blob. TestAzure has one that knows more.
func TestAzureProtocol(t *testing.T) {
	status := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey acme:"):
			w.WriteHeader(http.StatusForbidden)
		case status != 0:
			w.Header().Set("Retry-After", "5")
			w.Header().Set("X-Ms-Error-Code", "ServerBusy")
			w.WriteHeader(status)
			fmt.Fprint(w, "<Error><Code>ServerBusy</Code><Message>SECRET</Message></Error>")
		default:
			if span := r.Header.Get("X-Ms-Range"); span != "" {
				r.Header.Set("Range", span)
			}
			serveFile(w, r, `"0x1"`, content)
		}
	})
	entries := azureEntries(s.URL, "U0VDUkVU")
	remote := open(t, resolve(t, "m", `{"storage_key":"store"}`, entries), Options{})
	o := list(t, remote).Objects[0]
	if got, err := read(remote, o, 4, 4); err != nil || got != "4567" {
		t.Errorf("a part is %q, %v", got, err)
	}
	o.Version = `"0x2"`
	_, err := read(remote, o, 4, 4)
	fails(t, err, Changed, "412")
	for code, want := range map[int]Reason{401: Denied, 403: Denied, 404: NotFound, 429: Busy, 503: Busy, 400: Invalid} {
		status = code
		_, err := remote.List(t.Context())
		if pause := fails(t, err, want, strconv.Itoa(code)); want == Busy && pause != 5 {
			t.Errorf("%d: the pause is %d", code, pause)
		}
	}
	for entry, words := range map[string]string{"malformed": "the credentials for Azure are not valid", "half": "client_secret needs client_id"} {
		_, err := Open(t.Context(), resolve(t, "m", fmt.Sprintf(`{"storage_key":%q}`, entry), entries), Options{})
		fails(t, err, Invalid, words)
	}
	s.Close()
	_, err = remote.List(t.Context())
	fails(t, err, Busy, "cannot connect to")
}

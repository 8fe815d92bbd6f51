package fetch

import (
	"errors"
	"net/http"
	"testing"
)

// passed is a transport, as of a proxy, that takes all requests.
type passed struct{}

func (passed) RoundTrip(*http.Request) (*http.Response, error) { return nil, errPassed }

var errPassed = errors.New("passed")

func TestHostsBehindAProxy(t *testing.T) {
	for host, allowed := range map[string]bool{
		"example.com": true, "example.com.": true, "minio": true, "minio.ns.svc": true,
		"10.1.2.3": true, "10.1.2.3.": true, "[::1]": true,
		"1.example.com": true, "s3.example0": true, "x0.com": true, "metadata.example.com": true, "127.0.0.1": true,
		"169.254.169.254": false, "169.254.169.254.": false, "[fe80::1]": false, "[::ffff:a9fe:a9fe]": false,
		"2852039166": false, "2852039166.": false, "0xa9fea9fe": false, "0XA9FEA9FE": false, "169.254.43518": false,
		"169.254.0xa9.0xfe": false, "0251.0376.0251.0376": false, "169.16689662": false,
		"metadata.google.internal": false, "Metadata.Google.Internal.": false, "metadata": false, "instance-data": false,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/m", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := checked{passed{}}.RoundTrip(r)
		if answer != nil {
			_ = answer.Body.Close()
		}
		if errors.Is(err, errPassed) != allowed {
			t.Errorf("%s: %v", host, err)
		}
		if _, refused := errors.AsType[*RefusedError](err); refused == allowed {
			t.Errorf("%s: %v", host, err)
		}
	}
}

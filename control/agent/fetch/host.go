package fetch

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// checked is a transport that refuses hosts by [checkHost] even where a proxy connects.
type checked struct{ http.RoundTripper }

func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := checkHost(r.URL.Hostname()); err != nil {
		return nil, err
	}
	return c.RoundTripper.RoundTrip(r)
}

// metadataNames are the names of clouds' metadata services: Google's, Azure's,
// AWS's and Tencent's.
var metadataNames = []string{
	"metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.azure.com",
	"instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com",
}

// checkHost returns an error for a host that is a forbidden address or the name of a metadata
// service. It also refuses names whose last label is a number, because resolvers of proxies read
// these as addresses. See https://url.spec.whatwg.org/#ends-in-a-number-checker.
func checkHost(host string) error {
	name := strings.ToLower(strings.TrimRight(host, "."))
	if a, err := netip.ParseAddr(name); err == nil {
		return checkAddress(a)
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if isNumber(last) || slices.Contains(metadataNames, name) {
		return &RefusedError{Host: host}
	}
	return nil
}

// isNumber reports whether a label has only digits, or begins with 0x.
func isNumber(label string) bool {
	return label != "" && strings.Trim(label, "0123456789") == "" || strings.HasPrefix(label, "0x")
}

package envoy

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// downstreamTLS returns the TLS settings for the clients of a listener.
func downstreamTLS(l *plan.Listener, o Options) (*corev3.TransportSocket, error) {
	tls := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2", "http/1.1"}}
	for _, name := range l.Certificates {
		tls.TlsCertificateSdsSecretConfigs = append(tls.TlsCertificateSdsSecretConfigs,
			&tlsv3.SdsSecretConfig{Name: secretName(name), SdsConfig: o.Config})
	}
	is := &tlsv3.DownstreamTlsContext{CommonTlsContext: tls}
	if l.Clients != nil {
		is.RequireClientCertificate = wrapperspb.Bool(!l.Clients.Anybody)
		tls.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: clientsName(l.Port), SdsConfig: o.Config},
		}
	}
	config, err := anypb.New(is)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: config}}, nil
}

// clientsName is the SDS name of the authorities that sign the certificates of a port's clients.
func clientsName(port int32) string { return fmt.Sprintf("clients/%d", port) }

func clientsOf(port int32, c *plan.Clients) *tlsv3.Secret {
	is := &tlsv3.CertificateValidationContext{TrustedCa: inline(c.Authorities)}
	if c.Anybody {
		is.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	return &tlsv3.Secret{Name: clientsName(port), Type: &tlsv3.Secret_ValidationContext{ValidationContext: is}}
}

func secretName(name objects.Name) string { return "secret/" + name.String() }

func secretOf(name objects.Name, c plan.Certificate) *tlsv3.Secret {
	return &tlsv3.Secret{Name: secretName(name), Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(c.Chain), PrivateKey: inline(c.Key),
	}}}
}

// systemAuthorities is the file with the trusted authorities of Debian, on which Envoy's images are
// based.
const systemAuthorities = "/etc/ssl/certs/ca-certificates.crt"

// engineTLS returns the TLS settings for the endpoints of a pool.
func engineTLS(c *plan.Cluster) *tlsv3.UpstreamTlsContext {
	if c.TLS.InsecureSkipVerify {
		return upstreamTLS(c, c.TLS.Hostname, nil)
	}
	trusted := ofSystem()
	if cas := c.TLS.CACertificates; cas != "" {
		trusted = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: cas}}
	}
	return upstreamTLS(c, c.TLS.Hostname, trusts(trusted, []plan.AltName{{Name: c.TLS.Hostname}}))
}

// serviceTLS returns the TLS settings for the endpoints of a Service.
func serviceTLS(c *plan.Cluster) *tlsv3.UpstreamTlsContext {
	names, trusted := c.Secure.Names, ofSystem()
	if len(names) == 0 {
		names = []plan.AltName{{Name: c.Secure.Hostname}}
	}
	if len(c.Secure.Authorities) > 0 {
		trusted = inline(c.Secure.Authorities)
	}
	is := upstreamTLS(c, c.Secure.Hostname, trusts(trusted, names))
	if len(c.Secure.Chain) > 0 { // not by SDS, since the cluster would wait for the secret
		is.CommonTlsContext.TlsCertificates = []*tlsv3.TlsCertificate{{
			CertificateChain: inline(c.Secure.Chain),
			PrivateKey:       inline(c.Secure.Key),
		}}
	}
	return is
}

// upstreamTLS returns TLS settings with hostname as the SNI. If trust is nil, the server is not
// verified.
func upstreamTLS(c *plan.Cluster, hostname string, trust *tlsv3.CertificateValidationContext) *tlsv3.UpstreamTlsContext {
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"http/1.1"}}
	if c.H2C || c.Calls {
		common.AlpnProtocols = []string{"h2"}
	}
	if trust != nil {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: trust}
	}
	return &tlsv3.UpstreamTlsContext{Sni: hostname, CommonTlsContext: common}
}

// trusts returns settings that accept a certificate if one of the authorities signed it and it
// contains one of the names.
func trusts(authorities *corev3.DataSource, names []plan.AltName) *tlsv3.CertificateValidationContext {
	is := &tlsv3.CertificateValidationContext{TrustedCa: authorities}
	for _, n := range names {
		of := tlsv3.SubjectAltNameMatcher_DNS
		if n.URI {
			of = tlsv3.SubjectAltNameMatcher_URI
		}
		is.MatchTypedSubjectAltNames = append(is.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{
			SanType: of, Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n.Name}},
		})
	}
	return is
}

func ofSystem() *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: systemAuthorities}}
}

func inline(text []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
}

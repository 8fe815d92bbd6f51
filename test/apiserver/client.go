package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Admin returns a configuration for a client with all rights. Callers may change it.
func (s *Server) Admin() *rest.Config { return rest.CopyConfig(s.admin) }

// User returns a configuration for a user who is in groups. The user has the rights that RBAC binds
// to the user's name and groups. The user need not exist.
func (s *Server) User(name string, groups ...string) (*rest.Config, error) {
	own, err := s.authority.client(name, groups)
	if err != nil {
		return nil, err
	}
	c := s.anybody()
	c.CertData, c.KeyData = own.certificate, own.key
	return c, nil
}

// ServiceAccount returns a configuration with a token of a service account, such as a pod gets. The
// service account must exist.
func (s *Server) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	path := fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/%s/token", url.PathEscape(namespace), url.PathEscape(name))
	body := `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":86400}}`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.admin.Host+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status struct{ Token string }
	}
	if response.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("no token for the service account %s/%s: %s: %s", namespace, name, response.Status, text)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	c := s.anybody()
	c.BearerToken = answer.Status.Token
	return c, nil
}

// anybody returns a configuration without credentials and without client-side rate limit.
func (s *Server) anybody() *rest.Config {
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(s.Address, Port), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.authority.pem},
	}
}

// Kubeconfig returns the content of a kubeconfig file with the credentials of c.
func Kubeconfig(c *rest.Config) ([]byte, error) {
	const name = "headgate"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: c.Host, CertificateAuthorityData: c.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: c.CertData, ClientKeyData: c.KeyData,
			Token: c.BearerToken,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
}

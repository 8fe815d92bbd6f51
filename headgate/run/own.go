package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

const localhost = "localhost"

// parseServers parses the flag --endpoints: a list of HOST:PORT, separated by commas. Base URLs are
// accepted, too. listen is the address of Headgate.
func parseServers(text, listen string) ([]string, error) {
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("--endpoints: name your servers, such as --endpoints localhost:8000,gpu-2.internal:8000")
	}
	var servers []string
	for one := range strings.SplitSeq(text, ",") {
		written := strings.TrimSpace(one)
		server := strings.ToLower(written)
		if rest, ok := strings.CutPrefix(server, "http://"); ok {
			server = strings.TrimSuffix(strings.TrimSuffix(rest, "/"), "/v1")
		}
		address, err := objects.ParseAddress(server)
		switch {
		case written == "":
			return nil,
				errors.New("--endpoints: an address before or after a comma is missing: write HOST:PORT,HOST:PORT without a comma at the end")
		case strings.HasPrefix(server, "https://"):
			return nil,
				fmt.Errorf("--endpoints %s: headgate run calls servers over plain HTTP only: write HOST:PORT of a port without TLS",
					written)
		case strings.Contains(server, "/"):
			return nil, fmt.Errorf("--endpoints %s: write HOST:PORT alone, without a path, such as localhost:8000", written)
		case err != nil && strings.Trim(server, "0123456789") == "":
			return nil, fmt.Errorf("--endpoints %s: the host is missing: write localhost:%s if it serves on this machine", written, server)
		case err != nil && !strings.Contains(server, ":"):
			return nil, fmt.Errorf("--endpoints %s: the port is missing: write %s:8000 if it serves at 8000, as vLLM does", written, server)
		case err != nil:
			return nil, fmt.Errorf("--endpoints %s: %w", written, err)
		case slices.Contains(servers, server):
			return nil, fmt.Errorf("--endpoints: %s is listed twice: remove one", server)
		case isOwn(address, listen):
			return nil,
				fmt.Errorf("--endpoints %s: Headgate itself uses this port: change its port with --listen, such as --listen 127.0.0.1:8090", written)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// isOwn reports whether the address of a server is Headgate's own address, with which Headgate
// would send requests to itself.
func isOwn(a objects.Address, listen string) bool {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port != strconv.Itoa(int(a.Port)) {
		return false
	}
	at, _ := netip.ParseAddr(host) // invalid if the host is a name or empty
	switch {
	case host == "" || at.IsUnspecified():
		return a.Name == localhost || a.IP.IsLoopback()
	case a.Name == localhost:
		return host == localhost || at.IsLoopback()
	}
	return at.IsValid() && a.IP == at
}

// oneLoopback replaces the host localhost by the loopback address (IPv4 or IPv6) where a server
// listens. The other address would appear as a dead endpoint, or as the same server again.
func oneLoopback(ctx context.Context, servers []string) []string {
	all := slices.Clone(servers)
	for i, server := range servers {
		port, ok := strings.CutPrefix(server, localhost+":")
		if !ok {
			continue
		}
		all[i] = net.JoinHostPort("127.0.0.1", port)
		if six := net.JoinHostPort("::1", port); dial(ctx, all[i]) != nil && dial(ctx, six) == nil {
			all[i] = six
		}
	}
	return all
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// listed is one model in the model list of a server.
type listed struct {
	ID     string  `json:"id"`
	Parent *string `json:"parent"` // nil for a base model
}

// models returns the model list of the server at a base URL. Base models come first.
func models(ctx context.Context, client *http.Client, url string) ([]listed, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, statusError(response.StatusCode)
	}
	var list struct {
		Data []listed `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Data, func(a, b listed) int {
		switch {
		case a.Parent == nil && b.Parent != nil:
			return -1
		case a.Parent != nil && b.Parent == nil:
			return 1
		}
		return 0
	})
	return list.Data, nil
}

type statusError int

func (e statusError) Error() string { return http.StatusText(int(e)) }

// fault returns why no model of a server can be requested, and what to do about it. It is empty if
// one can be requested.
func fault(ctx context.Context, client *http.Client, server string) string {
	all, err := models(ctx, client, "http://"+server)
	var unknown *net.DNSError
	var status statusError
	switch {
	case err == nil && len(all) > 0:
		return ""
	case errors.As(err, &unknown):
		return "its name has no address: is the spelling correct?"
	case errors.As(err, &status) && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		return "it requires a key: write the key into a file, and add --extproc-flag=--engine-token-file=FILE"
	case errors.As(err, &status):
		return fmt.Sprintf("it answers GET /v1/models with %d: is it a model server?", int(status))
	case err == nil:
		return "it lists no model"
	case dial(ctx, server) == nil:
		return "it accepts connections, but does not list its models: is it still starting?"
	}
	return "it refuses connections: does it run, and listen on this port? On another machine, it must not listen on loopback only"
}

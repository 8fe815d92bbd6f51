// Package eds tells Envoy which endpoints there are, in a file of its endpoint discovery service: override_host, by which
// envoy.yaml lets a request go on to its next pick, finds hosts only among those of its cluster.
//
// The file comes before and goes after what extproc picks: it lists an endpoint before the fleet knows it, and until no
// decision that names it can be under way.
package eds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/headgate/headgate/api/wire"
)

// linger is how long the file goes on to list an endpoint that no pool has any more. A decision made before is under way
// for at most the message timeout of envoy.yaml, five seconds, and two connections that time out, two seconds each.
const linger = 10 * time.Second

// Render returns the file that lists these endpoints, each an "ip:port", in this order. Equal lists give equal bytes.
func Render(addresses []string) ([]byte, error) {
	hosts := &endpointv3.LocalityLbEndpoints{}
	for _, address := range addresses {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		hosts.LbEndpoints = append(hosts.LbEndpoints, host(a))
	}
	assignment, err := anypb.New(&endpointv3.ClusterLoadAssignment{
		ClusterName: wire.EndpointsCluster, Endpoints: []*endpointv3.LocalityLbEndpoints{hosts},
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(assignment.GetValue())
	text, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{
		VersionInfo: hex.EncodeToString(sum[:8]), Resources: []*anypb.Any{assignment},
	})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", " "); err != nil { // protojson's own spaces differ from build to build
		return nil, err
	}
	return append(out.Bytes(), '\n'), nil
}

func host(a netip.AddrPort) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
		}}},
	}}}
}

// File is the file that an Envoy follows. Its methods are safe for concurrent use. Make one with [Open].
type File struct {
	path string

	mu       sync.Mutex // guards the following
	content  []byte
	known    bool                 // the endpoints have been set
	current  []string             // endpoints of the pools
	departed map[string]time.Time // endpoints that were, with until when
}

// Open returns the File at a path, whose folder it makes. It fails where no file can be written, and leaves one that is
// there as it is, for an Envoy may be using it.
func Open(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f := &File{path: path, departed: make(map[string]time.Time)}
	var err error
	if f.content, err = os.ReadFile(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	// What can be written beside can be moved into place.
	if err := os.WriteFile(f.part(), nil, 0o644); err != nil {
		return nil, err
	}
	return f, os.Remove(f.part())
}

func (f *File) part() string { return f.path + ".part" + strconv.Itoa(os.Getpid()) }

// Set says which endpoints there are. When it returns nil the file lists them, and those that left not long ago. After an
// error [File.Run] tries again.
func (f *File) Set(addresses []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, address := range f.current {
		f.departed[address] = now
	}
	f.known, f.current = true, slices.Clone(addresses)
	return f.write(now)
}

// Run takes endpoints out of the file some time after they left, until ctx ends.
func (f *File) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		f.mu.Lock()
		err := f.write(time.Now())
		f.mu.Unlock()
		if err != nil {
			log.Error("cannot write the file of endpoints; Envoy does not know new ones; retrying", "err", err)
		}
	}
}

// write makes the file list what it should, if that is news. The caller holds mu.
func (f *File) write(now time.Time) error {
	if !f.known {
		return nil
	}
	all := slices.Clone(f.current)
	for address, until := range f.departed {
		if now.Sub(until) >= linger {
			delete(f.departed, address)
			continue
		}
		all = append(all, address)
	}
	slices.Sort(all)
	content, err := Render(slices.Compact(all))
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	if bytes.Equal(content, f.content) {
		return nil
	}
	if err := os.WriteFile(f.part(), content, 0o644); err != nil {
		return err
	}
	if err := os.Rename(f.part(), f.path); err != nil {
		return err
	}
	f.content = content
	return nil
}

package serve

import "google.golang.org/grpc"

// At returns what serves at an address, which nobody else than this machine can reach if it is local.
func (s *Server) At(address string, local bool) (*grpc.Server, error) {
	return s.server(address, local)
}

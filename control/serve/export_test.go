package serve

import "google.golang.org/grpc"

// At returns the server of an address. Local means that only this machine can reach it.
func (s *Server) At(address string, local bool) (*grpc.Server, error) {
	return s.server(address, local)
}

package serve

import "google.golang.org/grpc"

// At returns the server for an address. If local, only this machine can reach the address.
func (s *Server) At(address string, local bool) (*grpc.Server, error) {
	return s.server(address, local)
}

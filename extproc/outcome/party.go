package outcome

// Party is who caused a request to fail.
type Party string

const (
	// Nobody means that the request did not fail.
	Nobody Party = ""
	// Client means that the client left, or sent a request that was rejected.
	Client Party = "client"
	// Gateway means that extproc, control or Envoy could not have the request served.
	Gateway Party = "gateway"
	// Engine means that the engine did not serve a valid request.
	Engine Party = "engine"
	// Unknown means that the answer broke off, and nothing says at which end.
	Unknown Party = "unknown"
)

// Party returns who caused the request to fail.
func (o *Outcome) Party() Party {
	switch o.Failure {
	case None:
	case ClientGone:
		return Client
	case Refused, Reset, TimedOut, Erred, EngineGone:
		return Engine
	case NoEndpoint, Other:
		return Gateway
	case Cut:
		return Unknown
	}
	rejected := o.Status >= 400 && o.Status < 500
	switch {
	case o.ByExtproc && rejected && o.Status != 429:
		return Client
	case o.ByExtproc:
		return Gateway
	case o.ByEnvoy && rejected:
		return Client
	case o.ByEnvoy && o.Status >= 500:
		return Gateway
	case o.Faulty(), o.Status >= 500:
		return Engine
	case rejected, o.Call != NoCall && o.Call != OK:
		return Client
	}
	return Nobody
}

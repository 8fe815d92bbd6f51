package manage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/atomicfile"
)

// state is the content of the state file. It contains no keys and no paths of storage, which may be
// secret.
type state struct {
	Life   string                 `json:"life"`
	Marks  []string               `json:"marks,omitempty"`
	Status []byte                 `json:"status,omitempty"` // the answer to runtimeStatus, encoded; empty before the purge
	Models map[string]storedModel `json:"models,omitempty"`
}

type storedModel struct {
	Loaded bool   `json:"loaded,omitempty"`
	Path   string `json:"path,omitempty"` // the local path of fetched files
	Bytes  int64  `json:"bytes,omitempty"`
}

// readState reads the state file. It returns nil if there is none.
func readState(path string) (*state, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var s state
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && s.Life == "" {
		err = errors.New("it has no incarnation")
	}
	if err == nil && len(s.Status) > 0 {
		err = proto.Unmarshal(s.Status, new(mmesh.RuntimeStatusResponse))
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// life returns the incarnation that the state describes.
func (s *state) life() *life {
	l := newLife()
	l.id, l.old, l.marks = s.Life, true, s.Marks
	if len(s.Status) > 0 {
		l.status = new(mmesh.RuntimeStatusResponse)
		_ = proto.Unmarshal(s.Status, l.status) // readState has checked it
	}
	for id, m := range s.Models {
		l.models[id] = &model{local: Local{Path: m.Path, Bytes: m.Bytes}, loaded: m.Loaded}
	}
	return l
}

// models returns the models that the engine should have.
func (s *state) models() (all []loader.Model) {
	for id, m := range s.Models {
		all = append(all, loader.Model{ID: id, Source: m.Path})
	}
	return all
}

// save writes an incarnation to the state file. The caller holds mu, or is New.
func (s *Server) save(l *life) error {
	if s.config.StateFile == "" || l != s.life {
		return nil
	}
	now := state{Life: l.id, Marks: l.marks, Models: make(map[string]storedModel, len(l.models))}
	var err error
	if l.status != nil {
		if now.Status, err = proto.Marshal(l.status); err != nil {
			return err
		}
	}
	for id, m := range l.models {
		kept := storedModel{Loaded: m.loaded, Bytes: m.local.Bytes}
		if m.local.Path != m.request.Path {
			kept.Path = m.local.Path
		}
		now.Models[id] = kept
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.config.StateFile, text, 0o600); err != nil {
		return fmt.Errorf("the state of the agent: %w", err)
	}
	return nil
}

package objects

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/profile/table"
)

// maxParameters bounds what says how many parameters a model has.
const maxParameters = 32

// checkProfile refuses what says nothing of an engine, or two things.
func checkProfile(at *field.Path, p *v1alpha1.PoolProfile) field.ErrorList {
	var errs field.ErrorList
	forms := 0
	for _, given := range []bool{p.Inline != nil, p.File != "", p.Hardware != "" || p.Parameters != ""} {
		if given {
			forms++
		}
	}
	switch {
	case forms != 1:
		errs = append(errs, field.Invalid(at, "", "write one of inline, file, and hardware with parameters"))
	case (p.Hardware == "") != (p.Parameters == ""):
		errs = append(errs, field.Invalid(at, "", "write both hardware and parameters, such as 4 x A100-80GB and 70B"))
	}
	if p.Inline != nil {
		inline := at.Child("inline")
		errs = append(errs, checkLength(inline.Child("name"), p.Inline.Name, maxType)...)
		errs = append(errs, checkLength(inline.Child("source"), p.Inline.Source, maxPath)...)
		for _, f := range inlineProfile(p.Inline).Faults() {
			errs = append(errs, field.Invalid(inline.Child(f.Field), f.Value, f.Words))
		}
	}
	errs = append(errs, checkLength(at.Child("hardware"), p.Hardware, maxNameLen)...)
	if p.Parameters != "" {
		errs = append(errs, checkLength(at.Child("parameters"), p.Parameters, maxParameters)...)
		if _, err := table.ParseParameters(p.Parameters); err != nil {
			errs = append(errs, field.Invalid(at.Child("parameters"), p.Parameters, "write how many parameters the model has, such as 8B, 70B or 500M"))
		}
	}
	if name := p.HardwareLabel; name != "" && len(validation.IsQualifiedName(name)) > 0 {
		errs = append(errs, field.Invalid(at.Child("hardwareLabel"), name, "no label can have this name: write one such as example.com/gpu"))
	}
	return errs
}

// checkFolderProfile refuses, beside, what names no file of a folder, and what the table does not know: with file and line. That of an
// API server, where nobody sees the table before, becomes a Problem, and the other settings of the object hold.
func checkFolderProfile(at *field.Path, s *v1alpha1.PoolSettingsSpec) field.ErrorList {
	var errs field.ErrorList
	p := s.Profile
	if name := p.File; name != "" && !isProfileFile(name) {
		errs = append(errs, field.Invalid(at.Child("file"), name, "want the name of a file in this folder, such as profile.yaml"))
	}
	if p.Hardware == "" || p.Parameters == "" {
		return errs
	}
	if _, err := table.ParseHardware(p.Hardware); err != nil {
		_, words, _ := strings.Cut(err.Error(), ": ") // the field says what it is of
		errs = append(errs, field.Invalid(at.Child("hardware"), p.Hardware, words))
	} else if _, err := table.Of(p.Hardware, p.Parameters, slots(s)); err != nil {
		errs = append(errs, field.Invalid(at.Child("hardware"), p.Hardware, err.Error()))
	}
	return errs
}

// isProfileFile says whether a folder of objects may have a profile of that name.
func isProfileFile(name string) bool {
	return !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, `/\`) && slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// slots is for how many adapters the settings of a pool say that there is room on a GPU, 0 where they do not say.
func slots(s *v1alpha1.PoolSettingsSpec) int {
	if s.Placement == nil || s.Placement.MaxAdapters == nil {
		return 0
	}
	return int(*s.Placement.MaxAdapters)
}

// inlineProfile is a profile as the model of time has it.
func inlineProfile(p *v1alpha1.EngineProfile) profile.Profile {
	return profile.Profile{
		Name:    p.Name,
		Source:  p.Source,
		Prefill: profile.Prefill(p.Prefill),
		Decode:  profile.Decode(p.Decode),
		Load:    profile.Spread(p.Load),
		Slot:    profile.Spread(p.Slot),
		Limits:  profile.Limits(p.Limits),
	}
}

// addProfile gives a pool the profile that its settings say, and its endpoints their classes of hardware.
func (w *World) addProfile(p *Pool, files map[string]profile.Profile) {
	is := p.Settings.Profile
	if is == nil {
		return
	}
	if label := is.HardwareLabel; label != "" {
		for i := range p.Endpoints {
			p.Endpoints[i].Class = p.Endpoints[i].Labels[label]
		}
	}
	found, err := func() (profile.Profile, error) {
		switch {
		case is.Inline != nil:
			return inlineProfile(is.Inline), nil
		case is.File != "":
			found, ok := files[is.File]
			if !ok {
				return found, fmt.Errorf("file: there is no %s with a profile in the folder of objects", is.File)
			}
			return found, nil
		default:
			return table.Of(is.Hardware, is.Parameters, slots(p.Settings))
		}
	}()
	if err != nil {
		w.problem("PoolSettings %s: spec.profile: %v: the pool has no profile", p.SettingsName, err)
		return
	}
	p.Profile = &found
}

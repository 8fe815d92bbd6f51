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

// maxParameters limits the length of a model's number of parameters.
const maxParameters = 32

// maxAccelerators limits how many accelerators have profiles of their own, and maxAccelerator the
// length of a label's value.
const (
	maxAccelerators = 32
	maxAccelerator  = 63
)

// checkProfile refuses a profile that is empty or given twice.
func checkProfile(at *field.Path, p *v1alpha1.PoolProfile) field.ErrorList {
	var errs field.ErrorList
	whole := wholeOf(p)
	if forms := formsOf(whole); forms > 0 || len(p.Accelerators) == 0 {
		errs = append(errs, checkForms(at, whole)...)
	} else if p.Pinned {
		errs = append(errs, field.Invalid(at, "", "pinned needs a profile: set inline, file, or hardware with parameters"))
	}
	if name := p.AcceleratorLabel; name != "" && len(validation.IsQualifiedName(name)) > 0 {
		errs = append(errs, field.Invalid(at.Child("acceleratorLabel"), name,
			"no label can have this name: write one such as example.com/gpu"))
	}
	if len(p.Accelerators) > 0 && p.AcceleratorLabel == "" {
		errs = append(errs, field.Required(at.Child("acceleratorLabel"), "name the label that says which accelerator an endpoint has"))
	}
	if n := len(p.Accelerators); n > maxAccelerators {
		errs = append(errs, field.TooMany(at.Child("accelerators"), n, maxAccelerators))
	}
	there := make(map[string]bool)
	for i := range p.Accelerators {
		is, c := &p.Accelerators[i], at.Child("accelerators").Index(i)
		errs = append(errs, checkForms(c, is)...)
		switch name := c.Child("accelerator"); {
		case is.Accelerator == "":
			errs = append(errs, field.Required(name, "set the label's value, such as A100"))
		case there[is.Accelerator]:
			errs = append(errs, field.Duplicate(name, is.Accelerator))
		default:
			errs = append(errs, checkLength(name, is.Accelerator, maxAccelerator)...)
		}
		there[is.Accelerator] = true
	}
	return errs
}

// wholeOf returns the profile for all accelerators without one of their own.
func wholeOf(p *v1alpha1.PoolProfile) *v1alpha1.AcceleratorProfile {
	return &v1alpha1.AcceleratorProfile{Inline: p.Inline, File: p.File, Hardware: p.Hardware, Parameters: p.Parameters, Pinned: p.Pinned}
}

// formsOf counts the forms in which a profile is given.
func formsOf(p *v1alpha1.AcceleratorProfile) (forms int) {
	for _, given := range []bool{p.Inline != nil, p.File != "", p.Hardware != "" || p.Parameters != ""} {
		if given {
			forms++
		}
	}
	return forms
}

// checkForms requires exactly one valid profile.
func checkForms(at *field.Path, p *v1alpha1.AcceleratorProfile) field.ErrorList {
	var errs field.ErrorList
	switch {
	case formsOf(p) != 1:
		errs = append(errs, field.Invalid(at, "", "set one of inline, file, and hardware with parameters"))
	case (p.Hardware == "") != (p.Parameters == ""):
		errs = append(errs, field.Invalid(at, "", "set both hardware and parameters, such as 4 x A100-80GB and 70B"))
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
			errs = append(errs, field.Invalid(at.Child("parameters"), p.Parameters,
				"set the model's number of parameters, such as 8B, 70B or 500M"))
		}
	}
	return errs
}

// eachForm visits every profile of a PoolSettings: the general one and that of each accelerator.
func eachForm(at *field.Path, p *v1alpha1.PoolProfile, visit func(at *field.Path, is *v1alpha1.AcceleratorProfile)) {
	visit(at, wholeOf(p))
	for i := range p.Accelerators {
		visit(at.Child("accelerators").Index(i), &p.Accelerators[i])
	}
}

// checkServerProfile also refuses profile files, since an API server has no folder.
func checkServerProfile(at *field.Path, p *v1alpha1.PoolProfile) (errs field.ErrorList) {
	eachForm(at, p, func(at *field.Path, is *v1alpha1.AcceleratorProfile) {
		if is.File != "" {
			errs = append(errs, field.Invalid(at.Child("file"), is.File,
				"file works only for objects in a folder: put its content under inline"))
		}
	})
	return errs
}

// checkFolderProfile also refuses bad file names and unknown entries of the table, with file and
// line. For an API server, whose users cannot see the table beforehand, these become a Problem and
// the object's other settings apply.
func checkFolderProfile(at *field.Path, s *v1alpha1.PoolSettingsSpec) (errs field.ErrorList) {
	eachForm(at, s.Profile, func(at *field.Path, is *v1alpha1.AcceleratorProfile) {
		if name := is.File; name != "" && !isProfileFile(name) {
			errs = append(errs, field.Invalid(at.Child("file"), name, "want the name of a file in this folder, such as profile.yaml"))
		}
		if is.Hardware == "" || is.Parameters == "" {
			return
		}
		if _, err := table.ParseHardware(is.Hardware); err != nil {
			_, words, _ := strings.Cut(err.Error(), ": ") // the field already names it
			errs = append(errs, field.Invalid(at.Child("hardware"), is.Hardware, words))
		} else if _, err := table.Of(is.Hardware, is.Parameters, slots(s)); err != nil {
			errs = append(errs, field.Invalid(at.Child("hardware"), is.Hardware, err.Error()))
		}
	})
	return errs
}

// isProfileFile reports whether a profile in a folder of objects may have that file name.
func isProfileFile(name string) bool {
	return !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, `/\`) &&
		slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// slots returns the number of adapter slots on a GPU in a pool's settings, 0 if not set.
func slots(s *v1alpha1.PoolSettingsSpec) int {
	if s.Placement == nil || s.Placement.MaxAdapters == nil {
		return 0
	}
	return int(*s.Placement.MaxAdapters)
}

// inlineProfile converts a profile written in an object.
func inlineProfile(p *v1alpha1.EngineProfile) profile.Profile {
	return profile.Profile{
		Name:               p.Name,
		Source:             p.Source,
		FrontendOverhead:   p.FrontendOverhead,
		Prefill:            profile.Prefill(p.Prefill),
		Decode:             profile.Decode(p.Decode),
		LaunchOverhead:     p.LaunchOverhead,
		MixedBatchOverhead: p.MixedBatchOverhead,
		AsyncScheduling:    p.AsyncScheduling,
		AdapterLoad:        profile.Spread(p.AdapterLoad),
		AdapterActivation:  profile.Spread(p.AdapterActivation),
		Limits:             profile.Limits(p.Limits),
	}
}

// Said is a configured profile.
type Said struct {
	profile.Profile
	// Pinned turns learning off.
	Pinned bool
}

// Said returns the configured profile for an accelerator, nil if there is none.
func (p *Pool) Said(class string) *Said {
	if is := p.Classes[class]; is != nil {
		return is
	}
	if p.Profile == nil {
		return nil
	}
	return &Said{*p.Profile, p.Pinned}
}

// addProfile sets a pool's profiles from its settings, and the accelerators of its endpoints.
func (w *World) addProfile(p *Pool, files map[string]profile.Profile) {
	is := p.Settings.Profile
	if is == nil {
		return
	}
	if label := is.AcceleratorLabel; label != "" {
		for i := range p.Endpoints {
			p.Endpoints[i].Class = p.Endpoints[i].Labels[label]
		}
	}
	find := func(is *v1alpha1.AcceleratorProfile, where, without string) *profile.Profile {
		found, err := profileOf(is, files, slots(p.Settings))
		if err != nil {
			w.problem("PoolSettings %s: %s: %v: %s", p.SettingsName, where, err, without)
			return nil
		}
		return &found
	}
	if whole := wholeOf(is); formsOf(whole) > 0 {
		p.Profile = find(whole, "spec.profile", "the pool has no profile")
		p.Pinned = is.Pinned && p.Profile != nil
	}
	for i := range is.Accelerators {
		c := &is.Accelerators[i]
		if found := find(c, fmt.Sprintf("spec.profile.accelerators[%d]", i), "the accelerator has no profile of its own"); found != nil {
			if p.Classes == nil {
				p.Classes = make(map[string]*Said, len(is.Accelerators))
			}
			p.Classes[c.Accelerator] = &Said{*found, c.Pinned}
		}
	}
}

// profileOf returns a profile from any of its forms. If it states no adapter slots, slots applies.
func profileOf(is *v1alpha1.AcceleratorProfile, files map[string]profile.Profile, slots int) (profile.Profile, error) {
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
		return table.Of(is.Hardware, is.Parameters, slots)
	}
}
